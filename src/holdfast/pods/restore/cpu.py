"""Which flags of a processor a saved program may depend on."""

from collections.abc import Iterable

# By these the kernel notes clocks, power, monitoring, mitigations and virtualization: no program uses them, and they
# differ between kernels on the same processor. A flag that is not here counts, so that a new one is never overlooked.
_NOT_FOR_PROGRAMS = """
acpi aperfmperf arat art constant_tsc cpb cppc dtherm epb est extapic extd_apicid hfi hw_pstate hwp hwp_act_window
hwp_epp hwp_notify hwp_pkg_req ida nonstop_tsc nonstop_tsc_s3 pln pts tm tm2 topoext tsc_adjust tsc_deadline_timer
tsc_known_freq tsc_reliable x2apic xtopology xtpr apic pbe arch_lbr arch_perfmon bts cat_l2 cat_l3 cdp_l2 cdp_l3 cqm
cqm_llc cqm_mbm_local cqm_mbm_total cqm_occup_llc dca ds_cpl dtes64 dts mba pdcm pebs perfctr_core perfctr_llc
perfctr_nb perfmon_v2 rdt_a sdbg amd_lbr_v2 amd_lbr_pmc_freeze arch_capabilities flush_l1d ibpb ibpb_exit_to_user ibrs
ibrs_enhanced md_clear pti retpoline rsb_ctxsw split_lock_detect bus_lock_detect srbds_ctrl ssbd stibp amd_ppin
intel_ppin cpuid_fault overflow_recov succor smca ept ept_ad ept_mode_based_exec flexpriority hypervisor npt nrip_save
svm svm_lock tpr_shadow v_vmsave_vmload vgif vme vmcb_clean vmmcall vmx vnmi vpid tsc_scale decodeassists flushbyasid
pausefilter pfthreshold avic v_spec_ctrl skinit smx sme sev sev_es sev_snp tdx_host_platform osvw wdt de ht invpcid
invpcid_single la57 lm mca mce monitor msr mtrr nopl nx pae pat pcid pdpe1gb pge pks pse pse36 rep_good smap smep ss
umip user_shstk cr8_legacy cmp_legacy evtstrm cpuid
"""
_IGNORED = frozenset(_NOT_FOR_PROGRAMS.split())


def programs_flags(flags: Iterable[str]) -> frozenset[str]:
    """The flags of instructions that a program can use."""
    return frozenset(flags) - _IGNORED

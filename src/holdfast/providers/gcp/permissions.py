"""What a credential must be allowed to do. docs/machines.md has these lists; tests take each permission away once."""

MINIMAL = (
    "compute.disks.create",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.getGuestAttributes",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.machineTypes.get",
    "compute.subnetworks.use",
    "compute.zoneOperations.get",
    "compute.zoneOperations.list",
    "compute.zones.list",
)

# By the field of a SpotInstanceVM that needs it.
FOR_FIELDS = {
    "gcp.externalIP": ("compute.subnetworks.useExternalIp",),
    "gcp.networkTags": ("compute.instances.setTags",),
    "gcp.serviceAccount": ("compute.instances.setServiceAccount", "iam.serviceAccounts.actAs"),
    "vmImage": ("compute.images.useReadOnly",),
}

# For drills: preempting a machine on purpose.
FOR_DRILLS = ("compute.instances.simulateMaintenanceEvent",)

ALL = tuple(sorted({*MINIMAL, *(each for listed in FOR_FIELDS.values() for each in listed), *FOR_DRILLS}))

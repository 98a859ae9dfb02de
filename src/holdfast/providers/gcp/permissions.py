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

# For the list of zones, which nothing that makes or deletes machines asks for.
FOR_ZONES = ("compute.zones.list",)

_FOR_SOME = (*FOR_FIELDS.values(), FOR_DRILLS, FOR_ZONES)
ALL = tuple(sorted({*MINIMAL, *(each for listed in _FOR_SOME for each in listed)}))

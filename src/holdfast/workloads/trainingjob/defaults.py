"""What the operator's settings say where a TrainingJob says nothing."""

from msgspec import Struct

TENSORBOARD_IMAGE = "tensorflow/tensorflow:2.19.0"
RDMA_RESOURCE = "rdma/hca_shared_devices_a"
CLAIM_SIZE = "10Gi"


class Defaults(Struct, frozen=True, kw_only=True):
    """`holdfast_image` carries the holdfast command; `tensorboard_image` the tensorboard command and, for object
    stores, the packages with which it reads them."""

    image: str
    images: dict[str, str] = {}
    holdfast_image: str
    tensorboard_image: str = TENSORBOARD_IMAGE
    rdma_resource: str = RDMA_RESOURCE
    claim_size: str = CLAIM_SIZE
    service_monitors: bool = False
    shared_loopback: bool = False
    """All pods run on this machine, and 127.0.0.1 is nobody's own."""

    def training_image(self, framework: str) -> str:
        return self.images.get(framework) or self.image

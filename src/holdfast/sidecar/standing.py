"""How the attempt stands, as far as its sidecar knows: what the probes answer."""


class AttemptState:
    def __init__(self) -> None:
        self.is_started = False
        """What there is to resume from is in its place."""
        self.is_over = False
        """The operator says that this attempt has ended: nothing more of it counts."""
        self.stop = ""
        """Why the training is to end, in one word; "" while it is to go on."""
        self.is_saved = False
        """Asked to end, the training has saved, or has had its time to."""

        self.trainer_succeeded = False
        """The training has ended by itself, and says that all went well."""

    @property
    def is_live(self) -> bool:
        """What the kubelet is told about the trainer: it stops one that is not."""
        return not self.is_over and not self.is_saved

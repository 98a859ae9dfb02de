from tests.trainer.workers import processes

__all__ = ["processes"]

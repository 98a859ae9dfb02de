"""The three models: a linear classifier, one hidden layer, two convolutions."""

from holdfast.trainer.errors import BadSetting
from holdfast.trainer.layers import Layer, Product, convolution, dense, exact, flatten, half, pool, relu
from holdfast.trainer.network import Network
from holdfast.trainer.settings import Settings


def build(settings: Settings, image_shape: tuple[int, int], classes: int) -> Network:
    product = half if settings.mixed_precision else exact
    height, width = image_shape
    hidden, channels = settings.hidden, settings.channels
    if settings.model == "cnn" and min(image_shape) < 4:
        raise BadSetting(
            f"MODEL cnn needs images of at least 4 by 4 pixels; those of {settings.dataset} are {height} by {width}"
        )
    match settings.model:
        case "linear":
            layers = [flatten(), dense("out", height * width, classes, product)]
        case "mlp":
            layers = [
                flatten(),
                dense("hidden", height * width, hidden, product),
                relu(),
                dense("out", hidden, classes, product),
            ]
        case _:
            layers = [
                *_block("first", 1, channels, product),
                *_block("second", channels, channels * 2, product),
                flatten(),
                dense("hidden", (height // 4) * (width // 4) * channels * 2, hidden, product),
                relu(),
                dense("out", hidden, classes, product),
            ]
    return Network(tuple(layers))


def _block(name: str, inputs: int, outputs: int, product: Product) -> list[Layer]:
    return [convolution(name, inputs, outputs, product), relu(), pool()]

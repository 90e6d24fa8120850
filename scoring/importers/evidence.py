"""Evidence in a log's lines: whether its samples are images, and whether it computes in half precision."""

import re
from typing import Any, NamedTuple

_SEARCHED_CHARS = 8_192  # only so much of a line is searched

# A network, a data set or a metric of images, or a rate that is printed in images (NVIDIA's `ips` are images/s).
_IMAGE_WORDS = re.compile(
    r"res(?:net|next|nest)|\bvgg_?\d|mobile_?net|inception|xception|densenet|efficient_?net|squeezenet|alexnet"
    r"|shufflenet|darknet|ghostnet|regnet|hrnet|convnext|\bvit(?:_|-|\b)|\bdeit|\bswin|deeplab|pspnet|segformer"
    r"|segmenter|ocrnet|bisenet|icnet|encnet|\bfcn|\bunet\b|\byolo|mask_?rcnn|faster_?rcnn|retinanet"
    r"|imagenet|cityscapes|ade20k|\bcifar|\bmnist|pascal_?voc|\bcoco\b|\bimage_shape\b"
    r"|\btotal_ips\b|top[-_]?[15]\b|\bacc[15]\b|\bmIoU\b|\bacc_seg\b|\b(?:images?|imgs?)/s",
    re.IGNORECASE,
)
# Words of clips, text, speech and recommendation: a video network has a ResNet and a top-1 accuracy, too.
_OTHER_SAMPLE_WORDS = re.compile(
    r"ucf-?101|hmdb-?51|\bkinetics|\bsth-?sth|something-something|\bnum_segments\b|\bnum_clips\b|\bclip_len\b|slowfast"
    r"|\btokens?(?:_per_sec|/s)|\bperplexity\b|\bppl\b|wikitext|librispeech|movielens|criteo",
    re.IGNORECASE,
)
# A switch of half precision that is on, by any name that has FP16 or AMP in it.
_HALF_PRECISION_ON = re.compile(
    r"\b(?:\w*(?:fp16|bf16|float16|half_precision|mixed_precision|multi_precision)\w*|(?:\w+_)?amp)['\"]?\s*[:=]+\s*['\"]?"
    r"(?:true|1|o[123]|float16|bfloat16|fp16|bf16|dict)\b"
    r"|Fp16OptimizerHook|ApexOptimizerHook|AmpOptimWrapper|AMP is activated",
    re.IGNORECASE,
)


class Fact(NamedTuple):
    """A value that the log states, and the line that states it."""

    value: Any
    line: int  # 0 where the format itself states it


class Evidence:
    """The lines of a log that show what its samples are and whether it computes in half precision."""

    def __init__(self) -> None:
        self.images_line: int | None = None  # the first line that shows images
        self.other_line: int | None = None  # the first line that shows samples of another kind
        self.other_word = ""  # the word that shows it
        self.half_line: int | None = None  # the first line that switches half precision on

    def search(self, line: int, text: str, *, configures: bool) -> None:
        """Search a line for words of images, of other samples and of half precision; keep the first line with each.

        `line` is the number of the line. `configures` says that it stands before training or among its first rows. Only
        such lines are searched for samples that are not images, and for half precision. Words of images count anywhere.
        """
        text = text[:_SEARCHED_CHARS]
        if self.images_line is None and _IMAGE_WORDS.search(text):
            self.images_line = line
        if not configures:
            return

        if self.other_line is None:
            other_words = _OTHER_SAMPLE_WORDS.search(text)
            if other_words is not None:
                self.other_line = line
                self.other_word = other_words[0]
        if self.half_line is None and _HALF_PRECISION_ON.search(text):
            self.half_line = line

    def why_not_images(self) -> str | None:
        """Return a sentence on why no figure in images/s can be made of the log; None where its samples are images.

        They are where a line shows images, and no line shows samples of another kind.
        """
        if self.other_line is not None:
            return (
                f"line {self.other_line}: {self.other_word!r} shows samples that are not images; "
                "score logs of networks for images"
            )
        if self.images_line is None:
            return (
                "no line shows that the samples are images (a network, a data set or a metric of images, or a rate in "
                "images/s); score logs of networks for images, with the lines before their rows"
            )
        return None

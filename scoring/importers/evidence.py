"""Evidence in a log's lines of two things: that its samples are images, and that it computes in half precision."""

import re
from typing import Any, NamedTuple

_SEARCHED_CHARS = 8_192  # only the start of a longer line is searched

# A network, a data set or a metric of images, or a rate that is printed in images (NVIDIA's `ips` are images/s).
_IMAGE_WORDS = re.compile(
    r"res(?:net|next|nest)|\bvgg_?\d|mobile_?net|inception|xception|densenet|efficient_?net|squeezenet|alexnet"
    r"|shufflenet|darknet|ghostnet|regnet|hrnet|convnext|\bvit(?:_|-|\b)|\bdeit|\bswin|deeplab|pspnet|segformer"
    r"|segmenter|ocrnet|bisenet|icnet|encnet|\bfcn|\bunet\b|\byolo|mask_?rcnn|faster_?rcnn|retinanet"
    r"|imagenet|cityscapes|ade20k|\bcifar|\bmnist|pascal_?voc|\bcoco\b|\bimage_shape\b"
    r"|\btotal_ips\b|\bimgs_per_sec\b|top[-_]?[15]\b|\bacc[15]\b|\bmIoU\b|\bacc_seg\b|\b(?:images?|imgs?)/s",
    re.IGNORECASE,
)
# Words of clips, text, speech and recommendation. Image words alone prove nothing: a video network has a ResNet, too.
_OTHER_SAMPLE_WORDS = re.compile(
    r"ucf-?101|hmdb-?51|(?:\b|_)(?:kinetics|sth-?sth)|something-?something|\bnum_segments\b|\bnum_clips\b|\bclip_len\b|slowfast"
    r"|\btokens?(?:_per_sec|/s)|\bperplexity\b|\bppl\b|wikitext|librispeech|movielens|criteo",
    re.IGNORECASE,
)
# A switch of half precision that is on. Its name may be any that has FP16, AMP or the like in it.
_HALF_PRECISION_ON = re.compile(
    r"\b(?:\w*(?:fp16|bf16|float16|half_precision|mixed_precision|multi_precision)\w*|(?:\w+_)?amp)['\"]?\s*[:=]+\s*['\"]?"
    r"(?:true|1|o[123]|float16|bfloat16|fp16|bf16|dict)\b"
    r"|Fp16OptimizerHook|ApexOptimizerHook|AmpOptimWrapper|AMP is activated",
    re.IGNORECASE,
)


class Fact(NamedTuple):
    """A value that the log states, and the line that states it."""

    value: Any
    line: int  # 0: no line of the log states it


class Evidence:
    """The lines of a log that show what its samples are and whether it computes in half precision."""

    def __init__(self) -> None:
        self.images_line: int | None = None  # the first line that shows images
        self.other_line: int | None = None  # the first line that shows samples of another kind
        self.other_word = ""  # the word that shows it
        self.half_line: int | None = None  # the first line that switches half precision on

    def search(self, line: int, text: str, *, may_configure: bool) -> None:
        """Search one line of a training log for three signs, and keep the line's number for each sign that is new.

            the samples are images           "ImageNet", "images/s"       -> `images_line`
            the samples are something else   "tokens/s", "LibriSpeech"    -> `other_line`, and the text in `other_word`
            half precision is switched on    "use_amp: True"              -> `half_line`

        Of several lines with the same sign, the first one is kept.

        Args:
            line: Number of the line in the log.
            text: The line. Only its first 8,192 characters are searched.
            may_configure: True for the lines that may show how the training is set up: the lines before the first row
                of training figures, and the first 100 of these rows (WATCHED_ROWS in table.py). Any other line is
                searched for signs of images only.
        """
        searched = text[:_SEARCHED_CHARS]
        if self.images_line is None and _IMAGE_WORDS.search(searched):
            self.images_line = line
        if not may_configure:
            return  # what this line says of other samples or of half precision may not be about the training's set-up

        if self.other_line is None:
            other_words = _OTHER_SAMPLE_WORDS.search(searched)
            if other_words is not None:
                self.other_line = line
                self.other_word = other_words[0]
        if self.half_line is None and _HALF_PRECISION_ON.search(searched):
            self.half_line = line

    def why_not_images(self) -> str | None:
        """Return why the log cannot be scored as training on images, by the lines that `search` has read.

        Returns:
            None if the log's samples are images. Otherwise a sentence: a line shows other samples, such as "tokens/s",
            or no line shows images.
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

"""Decodes one image after the other by DALI, as training does, to find the one that a batch failed by."""

import re
from typing import Any

import numpy as np

REASON = re.compile(r"Error in thread \d+: (?P<reason>.*?)(?:\nStacktrace|\Z)", re.DOTALL)
SOURCE_LINE = re.compile(r"\[/[^\]]*\]\s*")  # of DALI's C++ code
NOT_BY_OPENCV = "Unsupported image type"  # what DALI says of any file that OpenCV cannot decode, also of a damaged PNG
ASSERTION = re.compile(r'Assert on ".*?" failed:?\s*')  # at times without a reason behind it


class Decoder:
    """DALI's decoder on the device that trains, for one image at a time."""

    def __init__(self, device: str, device_id: int | None) -> None:
        """Prepare to decode; the pipeline is built for the first image.

        Args:
            device: "cpu" or "gpu": which decodes.
            device_id: Number of the rank's GPU; None in a job on CPUs.
        """
        self._device, self._device_id = device, device_id
        self._pipeline: Any = None

    def fault(self, content: bytes) -> str:
        """Return why DALI cannot decode an image; an empty text if it can.

        Args:
            content: The bytes of the encoded image, for example of a JPEG file.
        """
        if self._pipeline is None:
            self._pipeline = self._build_pipeline()
        self._pipeline.feed_input("encoded", [np.frombuffer(content, dtype=np.uint8)])
        try:
            self._pipeline.run()
        except RuntimeError as error:
            self._pipeline = None  # it takes no further input after an error
            return reason(str(error))
        return ""

    def _build_pipeline(self) -> Any:
        """Build a DALI pipeline that takes one encoded image at a time, and outputs its shape and its pixels.

        The workloads' own pipelines begin with the same two operators, so this one fails at an image where they would.

        Returns:
            The built pipeline. Its input is called "encoded".
        """
        from nvidia.dali import Pipeline, fn, types

        pipeline = Pipeline(
            batch_size=1,
            num_threads=1,
            device_id=self._device_id,
            prefetch_queue_depth=1,
            exec_pipelined=False,
            exec_async=False,
        )
        with pipeline:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
            shape = fn.peek_image_shape(encoded)
            device = "mixed" if self._device == "gpu" else "cpu"  # mixed: from the host's memory to the GPU's
            image = fn.decoders.image(encoded, device=device, output_type=types.RGB)
            pipeline.set_outputs(shape, image)
        pipeline.build()
        return pipeline


def reason(error: str) -> str:
    """Take the reason out of an error message of DALI, which has many lines: stack, source lines and assertions.

    Args:
        error: The message.

    Returns:
        One line without a full stop.
    """
    match = REASON.search(error)
    text = match["reason"] if match else error
    text = ASSERTION.sub("", SOURCE_LINE.sub("", text))
    line = " ".join(text.split()).rstrip(".")
    if line in ("", NOT_BY_OPENCV):
        return "it is damaged, or of a variant of its format that is not supported"
    return line

"""What the network can be asked for: the least that there is."""

from harness.traits import Traits

TRAITS = Traits(layouts=("NCHW",))

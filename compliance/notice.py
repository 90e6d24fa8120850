"""What MLCommons' messaging guidelines ask to be said of a result of its benchmarks that it has not reviewed."""

UNVERIFIED = "unverified"  # beside each score
NOT_VERIFIED = "Result not verified by MLCommons Association."
TRADEMARK = (
    "The MLPerf name and logo are registered and unregistered trademarks of MLCommons Association in the United States "
    "and other countries. All rights reserved. Unauthorized use strictly prohibited. See www.mlcommons.org."
)

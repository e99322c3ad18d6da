"""Models on the Hugging Face hub that are available only after their terms have been accepted."""

import re

GATED = re.compile(
    r"\b(?:meta-llama/[\w.-]+|google/(?:code)?gemma[\w.-]*|black-forest-labs/FLUX\.1-dev|bigcode/starcoder[\w.-]*)"
)

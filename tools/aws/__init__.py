"""Sessions, identities and policies of AWS."""

from tools.aws.session import AwsError, Session

__all__ = ["AwsError", "Session"]

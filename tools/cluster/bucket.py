"""Checks the bucket of the team's data and runs."""

from tools.aws import AwsError, Session
from tools.aws.policies import Place
from tools.cluster.finding import Finding, bad, good, unknown
from tools.cluster.service_accounts import bucket_of
from tools.cluster.spec import Spec


def check(session: Session, spec: Spec) -> list[Finding]:
    """Check that the bucket belongs to its account and keeps what a job overwrites."""
    if spec.get("S3_BUCKET") is None:
        return []
    try:
        return [_versioning(session, spec)]
    except AwsError as problem:
        if problem.aws_code == "NoSuchBucket":
            return [bad("bucket", f"the bucket {spec.get('S3_BUCKET')} does not exist", spec.at("S3_BUCKET"))]
        return [unknown("bucket", problem.message, problem.hint)]


def _versioning(session: Session, spec: Spec) -> Finding:
    bucket = bucket_of(spec, Place.of(session))
    assert bucket is not None
    asked = {"Bucket": bucket.name, "ExpectedBucketOwner": bucket.owner}
    status = session.call("s3", "get_bucket_versioning", **asked).get("Status")
    if status == "Enabled":
        return good("bucket", f"{bucket.name} is versioned: what a job overwrites can be restored")
    remedy = "aws s3api put-bucket-versioning --versioning-configuration Status=Enabled"
    summary = f"{bucket.name} is not versioned: what a job overwrites is lost"
    return bad("bucket", summary, f"{remedy} --bucket {bucket.name}")

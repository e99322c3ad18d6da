"""Create, check, scale, price and delete clusters on AWS.

\b
Examples:
  yard cluster whoami
  yard cluster config gpu
  yard cluster capacity p5.48xlarge 4 --region us-west-2

\b
CLUSTER is a directory under clusters/. Credentials, profile and endpoint are those of the AWS CLI.
"""

from tools.cli._lazy_group import group

command = group(__name__, __doc__)

"""The AWS account around a cluster: one session, what is in it, what it allows, what it costs."""

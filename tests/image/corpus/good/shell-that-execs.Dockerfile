FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
ENTRYPOINT ["bash", "-c", "ulimit -l unlimited && exec torchrun \"$@\"", "--"]
USER 65532:65532

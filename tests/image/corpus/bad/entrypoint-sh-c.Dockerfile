# warns: signals@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
ENTRYPOINT ["/bin/sh", "-c", ". /env && torchrun train.py"]
USER 1000

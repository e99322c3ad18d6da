# SHELL names bash, which has pushd.
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
SHELL ["/bin/bash", "-c"]
RUN pushd /srv && python -m compileall . && popd
USER 1000:1000
CMD ["python", "train.py"]

# warns: hadolint@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pushd /srv && python -m compileall . && cd /
USER 1000:1000
CMD ["python", "train.py"]

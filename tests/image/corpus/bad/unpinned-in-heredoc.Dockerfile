# warns: pins@5
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN <<EOF
set -e
pip install --no-cache-dir peft
EOF
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]

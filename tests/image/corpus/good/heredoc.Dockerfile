FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN <<EOF bash
set -eu
apt-get update
apt-get install -y --no-install-recommends git
rm -rf /var/lib/apt/lists/*
EOF
COPY <<EOF /etc/motd
pip install unpinned
EOF
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]

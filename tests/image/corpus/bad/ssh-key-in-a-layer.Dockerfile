# warns: secrets@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/id_ed25519
USER 1000:1000
CMD ["python", "train.py"]

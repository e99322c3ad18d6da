# warns: base@3
ARG TAG=latest
FROM python:${TAG}
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]

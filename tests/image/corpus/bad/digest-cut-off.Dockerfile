# finds: base@2
FROM python:3.12@sha256:1234
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]

# warns: base@2
FROM pytorch/pytorch:latest
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]

# warns: transport@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN python3 -c "print(1)" && wget http://downloads.example.com/tokenizer-1.2.3.tar.gz
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]

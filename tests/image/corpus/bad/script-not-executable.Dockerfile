# finds: executable@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
COPY <<'END' /run.sh
#!/bin/sh
exec torchrun train.py
END
ENTRYPOINT ["/run.sh"]
USER 1000

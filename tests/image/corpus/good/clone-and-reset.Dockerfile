# The commit of a clone is chosen in a later RUN. Text about the installer of EFA is not a call of it.
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN git clone https://github.com/example/ops /ops
RUN cd /ops && git reset --hard 0123456789abcdef0123456789abcdef01234567
RUN test -x /opt/amazon/efa/bin/fi_info || { echo "run efa_installer.sh first"; exit 1; }
USER 1000:1000
CMD ["python", "train.py"]

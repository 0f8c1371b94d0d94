# docker build -t weir .
# For builds from a checkout. The published image, for several architectures and with all licenses, is made by
# `make release`: docs/adr/0064.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
# .dockerignore lists what the build needs: everything else stays out of the context.
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/bin/weir ./cmd/sidecar
# Under the name ratelimit the program is envoyproxy/ratelimit: docs/migrating/envoyproxy-ratelimit.md.
RUN ln -s weir /out/bin/ratelimit

# No shell and no libc: only the binary, CA certificates (rediss://) and time zones.
FROM gcr.io/distroless/static-debian12:nonroot AS weir
COPY --from=build /out/bin/ /bin/
COPY LICENSE /usr/share/doc/weir/LICENSE
LABEL org.opencontainers.image.title="Weir" \
      org.opencontainers.image.description="A rate limit service for Envoy" \
      org.opencontainers.image.source="https://github.com/weir-ratelimit/weir" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65534:65534
EXPOSE 8081 8080 6070
# Only whether the process is alive: Docker Swarm replaces unhealthy containers, which helps nobody while Redis is away.
# Kubernetes ignores this line; deploy/kubernetes has its probes.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["/bin/weir", "health", "--live", "--timeout", "2s"]
# `command: /bin/ratelimit` works, too: weir runs under the name that its first argument ends with.
ENTRYPOINT ["/bin/weir"]
CMD ["serve", "--rules", "/rules"]

# docker build -t weir .
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
# .dockerignore lists what the build needs: everything else stays out of the context.
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /sidecar ./cmd/sidecar

# No shell and no libc: only the binary, CA certificates (rediss://) and time zones.
FROM gcr.io/distroless/static-debian12:nonroot AS sidecar
COPY --from=build /sidecar /sidecar
USER 65532:65532
EXPOSE 8081 8080
# The binary asks itself over HTTP. Kubernetes ignores this line: examples/kubernetes.yaml has its probes.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["/sidecar", "health"]
ENTRYPOINT ["/sidecar"]
CMD ["serve", "--rules", "/rules"]

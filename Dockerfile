# docker build -t weir .
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY internal internal
COPY pkg pkg
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /sidecar ./cmd/sidecar

# No shell and no libc: only the binary, CA certificates (rediss://) and time zones. That leaves nothing inside to run
# as a HEALTHCHECK; whoever runs the container asks GET /readyz on 8080, or grpc.health.v1 on 8081.
FROM gcr.io/distroless/static-debian12:nonroot AS sidecar
COPY --from=build /sidecar /sidecar
USER 65532:65532
EXPOSE 8081 8080
ENTRYPOINT ["/sidecar"]
CMD ["serve", "--rules", "/rules"]

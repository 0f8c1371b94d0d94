module github.com/weir-ratelimit/weir/e2e/gateway

go 1.26.0

require github.com/weir-ratelimit/weir v0.0.0

replace github.com/weir-ratelimit/weir => ../..

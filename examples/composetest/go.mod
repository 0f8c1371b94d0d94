module github.com/weir-ratelimit/weir/examples/composetest

go 1.26.0

require (
	github.com/weir-ratelimit/weir v0.0.0
	go.yaml.in/yaml/v3 v3.0.6
)

replace github.com/weir-ratelimit/weir => ../..

require (
	github.com/gaissmai/bart v0.30.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/text v0.42.0 // indirect
)

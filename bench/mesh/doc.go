// Package mesh models many replicas before a Redis Cluster in virtual time, for docs/performance.md: make
// simulate-mesh.
//
// The guards and the arithmetic of the limits are the real ones. The network, the time that a shard takes for a call,
// and the queue of requests to it are models; the tests compare them with five real replicas on a real Redis.
package mesh

// Package partnertest has what talks with Weir besides Envoy and Redis. Take it for a test of what they see: Series
// reads metrics as Prometheus does, StartCollector receives traces, StartControlPlane sends rules over xDS, and
// StartBrowser opens the page in a Chromium without a window.
package partnertest

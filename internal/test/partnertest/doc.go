// Package partnertest has counterparts of Weir other than Envoy and Redis. Series reads metrics as Prometheus does,
// StartCollector receives traces, StartControlPlane sends rules over xDS, and StartBrowser opens the dashboard in a
// headless Chromium. Use it if a promise is about what a counterpart receives from Weir or sends to Weir.
package partnertest

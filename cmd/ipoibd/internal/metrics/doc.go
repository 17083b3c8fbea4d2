// Package metrics serves the state of the daemon to monitoring systems, over HTTP:
//
//	GET /livez    200, or 503 if an interface hangs and only a restart may help
//	GET /readyz   200, or 503 if an interface carries no traffic
//	GET /metrics  Prometheus's text format, or OpenMetrics if the client accepts it
//
// A 503 has a line for each interface concerned, with the reason.
//
// # Source
//
// Everything comes from [report.Status], which a scrape reads once: this package computes
// nothing that the status does not show, and holds no state. [diagnose.NotReady] decides
// for /readyz, for `ipoibd status --check` and for the metric ipoibd_interface_ready.
//
// # Names
//
// A counter of docs/counters.md has the name of its row: tx_sent of an interface is
// ipoibd_interface_tx_sent_total, a gauge has no _total. Three groups differ: those that count
// losses are one metric, ipoibd_interface_drops_total or ipoibd_device_drops_total, whose label
// reason has the counter's name; the distributions tap_bytes_* and tap_segments_* have a label
// range, and tap_wait_ns_* is a histogram; and counters of a driver, whose names are its own,
// are in ipoibd_device_driver_counter with a label name. docs/monitoring.md lists the others.
//
// Every label has few values: the names of the configuration, and enumerations. No peer and no
// address is a label.
//
// # Server
//
// The control socket serves the three paths to root and to the daemon's user. [Listen] serves
// them, and nothing else, over TCP to anyone who can connect. Its clients are bounded: a
// connection carries one request, which must arrive within 5 s, in a header of at most 8 KiB;
// there are at most 64 connections, and a new one beyond that closes the oldest; and at most 100
// connections a second are accepted. Others wait in the kernel's queue of 64. Scrapes within
// 100 ms share one reading of the status. So a flood takes little of the processor from the data
// path. During one, a legitimate network client may have to retry; the control socket is
// not affected.
package metrics

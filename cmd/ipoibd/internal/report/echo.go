package report

import (
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca"
)

// Echo is the answer of a peer to a ping.
type Echo struct {
	GID       hca.GID         `json:"gid"`
	QPN       hca.QPN         `json:"qpn"`
	RoundTrip journal.Seconds `json:"round_trip_seconds"` // between the owners of the two interfaces
}

package e2e

import "ipoibd/hca"

// status is what these tests use of `ipoibd status --json`.
type status struct {
	PID        int      `json:"pid"`
	Sandbox    sandbox  `json:"sandbox"`
	Goroutines int      `json:"goroutines"`
	FDs        int      `json:"fds"`
	Devices    []device `json:"devices"`
	Interfaces []iface  `json:"interfaces"`
}

type device struct {
	Name     string            `json:"name"`
	State    string            `json:"state"`
	Counters map[string]uint64 `json:"counters"`
}

type iface struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Why     string `json:"reason"`
	Reason  string `json:"detail"` // for people
	MAC     string `json:"mac"`
	HostMAC string `json:"host_mac"`
	MTU     int    `json:"mtu"`
	Limit   struct {
		To  string `json:"to"`
		MTU int    `json:"mtu"`
	} `json:"mtu_limit"`
	Notice   string            `json:"notice"`
	Adopted  bool              `json:"adopted"`
	Lanes    int               `json:"lanes"`
	QP       *qp               `json:"qp"`
	Stations []stationStatus   `json:"stations"`
	Peers    []peer            `json:"peers"`
	NoFast   string            `json:"no_fast_path"`
	Counters map[string]uint64 `json:"counters"`
	Kernel   map[string]uint64 `json:"kernel"`
}

type stationStatus struct {
	MAC    string   `json:"mac"`
	IPs    []string `json:"ips"`
	Groups []string `json:"groups"`
}

type qp struct {
	QPN   hca.QPN `json:"qpn"`
	State string  `json:"state"`
	GID   string  `json:"gid"`
}

type peer struct {
	MAC   string   `json:"mac"`
	GID   string   `json:"gid"`
	QPN   hca.QPN  `json:"qpn"`
	IPs   []string `json:"ips"`
	State string   `json:"state"`
}

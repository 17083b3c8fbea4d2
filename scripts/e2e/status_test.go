package e2e

// status is what these tests use of `ipoibd status --json`.
type status struct {
	Goroutines int      `json:"goroutines"`
	FDs        int      `json:"fds"`
	Devices    []device `json:"devices"`
	Interfaces []iface  `json:"interfaces"`
}

type device struct {
	Name     string    `json:"name"`
	Counters []counter `json:"counters"`
}

type iface struct {
	Name     string    `json:"name"`
	State    string    `json:"state"`
	Reason   string    `json:"reason"`
	MAC      string    `json:"mac"`
	HostMAC  string    `json:"host_mac"`
	MTU      int       `json:"mtu"`
	Adopted  bool      `json:"adopted"`
	QP       *qp       `json:"qp"`
	Peers    []peer    `json:"peers"`
	Counters []counter `json:"counters"`
	Kernel   []counter `json:"kernel"`
}

type qp struct {
	QPN   uint32 `json:"qpn"`
	State string `json:"state"`
	GID   string `json:"gid"`
}

type peer struct {
	MAC   string   `json:"mac"`
	GID   string   `json:"gid"`
	QPN   uint32   `json:"qpn"`
	IPs   []string `json:"ips"`
	State string   `json:"state"`
}

type counter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// value returns a counter by name, or false if there is none.
func value(cs []counter, name string) (uint64, bool) {
	for _, c := range cs {
		if c.Name == name {
			return c.Value, true
		}
	}
	return 0, false
}

package config

import (
	"cmp"
	"net/netip"
	"strings"
	"unicode"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// Interface is one ib0. [InterfaceFields] describes its fields.
type Interface struct {
	Name        string   `json:"name"`
	Device      string   `json:"device"`
	Port        uint8    `json:"port"`
	PKey        hca.PKey `json:"pkey"`
	GID         string   `json:"gid"`       // empty, and GIDIndex nil: the daemon selects it
	GIDIndex    *int     `json:"gid_index"` // in the port's table
	MTU         int      `json:"mtu"`       // 0: the largest that the group allows
	Addresses   []string `json:"addresses"` // see ParseAddress
	Routes      []string `json:"routes"`    // see ParseRoute
	Up          bool     `json:"up"`
	SourceCheck bool     `json:"source_check"`
	DHCP        string   `json:"dhcp"`     // DHCPEthernet or DHCPRFC4390; empty: by the link layer
	SendWRs     int      `json:"send_wrs"` // Validate replaces 0 by the device's default
	RecvWRs     int      `json:"recv_wrs"` // the same
	EBPF        bool     `json:"ebpf"`
	Follow      bool     `json:"follow"`
	Netns       string   `json:"netns"`  // empty: that of the daemon
	Netdev      string   `json:"netdev"` // empty: Name
	Owner       string   `json:"owner"`
}

// NetdevName returns the name of the interface in the kernel.
func (f *Interface) NetdevName() string { return cmp.Or(f.Netdev, f.Name) }

// NewInterface returns an interface with its defaults.
func NewInterface() Interface {
	return Interface{Name: DefaultName, Device: DefaultDevice, Port: 1, PKey: hca.PKeyDefault, EBPF: true}
}

// Forms of the requests of DHCP clients behind an interface.
const (
	DHCPEthernet = "ethernet"
	DHCPRFC4390  = "rfc4390"
)

// Change copies the live fields of another interface to f.
func (f *Interface) Change(to *Interface) {
	for _, field := range InterfaceFields {
		if field.Live {
			field.Copy(f, to)
		}
	}
}

const notInterface = "%q is not an interface's name (1 to %d characters, no slash, colon, percent or space)"

// InterfaceFields are the fields of an interface.
var InterfaceFields = Table[Interface]{{
	Name: "name", Of: func(f *Interface) any { return &f.Name }, Flag: "name", Help: "name of the interface",
	check: func(f *Interface, m place) { m.require(validName(f.Name), notInterface, f.Name, maxNameLen) },
}, {
	Name: "device", Of: func(f *Interface) any { return &f.Device },
	Help: "name of a device", Default: "the only one",
}, {
	Name: "port", Of: func(f *Interface) any { return &f.Port }, Flag: "port", Help: "port of the device, from 1 to 255",
	check: func(f *Interface, m place) { m.require(f.Port != 0, "ports are numbered from 1") },
}, {
	Name: "pkey", Of: func(f *Interface) any { return (*PKeyValue)(&f.PKey) },
	Flag: "pkey", Help: "`P_Key` of the interface",
}, {
	Name: "gid", Of: func(f *Interface) any { return &f.GID },
	Flag: "gid", Help: "`address` of the GID to use", Default: "first IPv4, global IPv6, link-local",
	check: func(f *Interface, m place) {
		a, err := netip.ParseAddr(f.GID)
		valid := err == nil && a.Zone() == "" && !a.IsMulticast() && !a.IsUnspecified()
		m.require(f.GID == "" || valid, "%q is not the IPv4 or IPv6 address of a host, without prefix length and zone", f.GID)
	},
}, {
	Name: "gid_index", Of: func(f *Interface) any { return &f.GIDIndex },
	Flag: "gid-index", Help: "`index` of the GID to use in the port's table", Default: "as for --gid",
	check: func(f *Interface, m place) {
		if f.GIDIndex != nil {
			within(m, *f.GIDIndex, 0, maxGIDIndex)
			m.require(f.GID == "", "cannot be combined with gid")
		}
	},
}, {
	Name: "mtu", Of: func(f *Interface) any { return &f.MTU }, Live: true,
	Flag: "mtu", Help: "MTU of the interface", Default: "the largest that fits",
	check: func(f *Interface, m place) { within(m, cmp.Or(f.MTU, minMTU), minMTU, ipoib.MaxMTU) },
}, {
	Name: "addresses", Of: func(f *Interface) any { return &f.Addresses }, Live: true, Flag: "address",
	Help: "`address` of the host, with the length of its network's prefix, such as 10.9.0.1/24",
	check: func(f *Interface, m place) {
		assigned(m, f.Addresses, func(s string) (netip.Addr, error) {
			p, err := ParseAddress(s)
			return p.Addr(), err
		})
	},
}, {
	Name: "routes", Of: func(f *Interface) any { return &f.Routes }, Live: true, Flag: "route",
	Help: "`route` through the interface: '10.0.0.0/8 via 10.9.0.254', or without 'via' for hosts on the link",
	check: func(f *Interface, m place) {
		assigned(m, f.Routes, func(s string) (netip.Prefix, error) {
			to, _, err := ParseRoute(s)
			return to, err
		})
	},
}, {
	Name: "up", Of: func(f *Interface) any { return &f.Up }, Live: true,
	Flag: "up", Help: "set the interface up at the start",
}, {
	Name: "source_check", Of: func(f *Interface) any { return &f.SourceCheck }, Live: true,
	Help: "drop frames of the host that come from, or claim, an IP address that is not the interface's",
	check: func(f *Interface, m place) {
		m.require(!f.SourceCheck || len(f.Addresses) > 0, "needs addresses: without any, every IP frame from the host "+
			"would be dropped, except those from its link-local address")
	},
}, {
	Name: "dhcp", Of: func(f *Interface) any { return &f.DHCP },
	Help: "form of the requests of DHCP clients: ethernet, or rfc4390 for servers that know the clients on IPoIB by their " +
		"identifiers only", Default: "ethernet; rfc4390 on InfiniBand",
	check: func(f *Interface, m place) {
		valid := f.DHCP == "" || f.DHCP == DHCPEthernet || f.DHCP == DHCPRFC4390
		m.require(valid, "%.100q is neither %s nor %s", f.DHCP, DHCPEthernet, DHCPRFC4390)
	},
}, {
	Name: "send_wrs", Of: func(f *Interface) any { return &f.SendWRs },
	Help: "length of the send queue, in frames", Default: "128; 512 for a real HCA",
}, {
	Name: "recv_wrs", Of: func(f *Interface) any { return &f.RecvWRs },
	Help: "length of the receive queue", Default: "128; 2048 for a real HCA",
}, {
	Name: "ebpf", Of: func(f *Interface) any { return &f.EBPF }, Flag: "ebpf",
	Help: "use eBPF programs to drop frames that IPoIB cannot carry, and to select queues, in the kernel",
}, {
	Name: "follow", Of: func(f *Interface) any { return &f.Follow }, Live: true, Flag: "follow",
	Help: "follow the interface if it is moved to another network namespace; " +
		"keeps CAP_SYS_ADMIN and CAP_NET_BROADCAST",
}, {
	Name: "netns", Of: func(f *Interface) any { return &f.Netns },
	Help: "path of a network namespace to which the interface is lent",
	check: func(f *Interface, m place) {
		valid := f.Netns == "" || absolute(f.Netns, maxPath)
		m.require(valid, "%.100q is not the absolute path of a network namespace", f.Netns)
	},
}, {
	Name: "netdev", Of: func(f *Interface) any { return &f.Netdev },
	Help: "name of the interface in the kernel", Default: "`name`",
	check: func(f *Interface, m place) {
		m.require(f.Netdev == "" || validName(f.Netdev), notInterface, f.Netdev, maxNameLen)
	},
}, {
	Name: "owner", Of: func(f *Interface) any { return &f.Owner }, Help: "whom the interface is for",
	check: func(f *Interface, m place) {
		valid := len(f.Owner) <= maxOwner && !strings.ContainsFunc(f.Owner, unicode.IsControl)
		m.require(valid, "more than %d bytes, or control characters", maxOwner)
	},
}}

// validName reports whether s can be the name of an interface. The kernel replaces %d by a number.
func validName(s string) bool { return validNetdev(s) && !strings.Contains(s, "%") }

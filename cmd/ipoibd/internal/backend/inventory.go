package backend

import (
	"errors"
	"fmt"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/hca"
	"ipoibd/hca/rdma"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/udp"
)

// Entry is one HCA.
type Entry struct {
	Name     string    `json:"name"` // as --device takes it
	Kind     string    `json:"kind"` // KindSoftware, KindSoftRoCE or KindHardware
	NodeGUID *hca.GUID `json:"node_guid,omitempty"`
	PCIAddr  string    `json:"pci_addr,omitempty"`
	Netdev   string    `json:"netdev,omitempty"` // below an HCA that is not hardware
	Ports    []Port    `json:"ports"`
	Users    []string  `json:"users"`   // processes that have it open
	Trouble  []string  `json:"trouble"` // why it cannot be used; empty: it can
}

// Port is a port of an HCA.
type Port struct {
	Num       uint8         `json:"num"`
	State     hca.PortState `json:"state"`
	LinkLayer hca.LinkLayer `json:"link_layer"`
	GIDs      []rdma.GID    `json:"gids"`
	Trouble   []string      `json:"trouble"` // as in Entry
}

// System provides the data of an inventory.
type System struct {
	Devices func() ([]rdma.Device, error)
	Users   func(rdma.Device) ([]rdma.User, error)
	Open    func(name string) (hca.Device, error)
	Netdev  func() (string, error) // of the software HCA
	Look    func(netdev string) (transport.State, error)
	Bind    func(netdev string) error // binds the UDP port for a moment
}

// Local returns the system that the program runs on; open opens an RDMA device. The software
// HCA is on the netdev underlay, or if that is empty, on the default netdev.
func Local(open func(string) (hca.Device, error), underlay string) System {
	devices := func() ([]rdma.Device, error) {
		devices, err := rdma.List()
		for i := range devices {
			err = errors.Join(err, devices[i].ReadGIDs())
		}
		return devices, err
	}
	bind := func(netdev string) error {
		if err := checkUnderlay(netdev); err != nil {
			return err
		}
		t, err := udp.Open(udp.Config{Netdev: netdev})
		if err == nil {
			err = t.Close()
		}
		return err
	}
	s := System{devices, rdma.Users, open, udp.DefaultNetdev, udp.Look, bind}
	if underlay != "" {
		s.Netdev = func() (string, error) { return underlay, nil }
	}
	return s
}

// PortTaken returns an error that names the processes that use the UDP port of a software HCA, or nil. A
// daemon in the sandbox cannot find them.
func PortTaken(d *config.Device) error {
	if config.KindOf(d.HCA) != config.KindSoft {
		return nil
	}
	underlay := d.Underlay
	if underlay == "" {
		underlay, _ = udp.DefaultNetdev() // without one, opening the device fails
	}
	return udp.Taken(underlay)
}

// Take returns the HCAs of all kinds, the software HCA first.
func (s System) Take() ([]Entry, error) {
	var out []Entry
	for _, b := range backends {
		entries, err := b.list(s)
		out = append(out, entries...)
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

func (s System) software() Entry {
	e := Entry{Name: config.SoftHCA, Kind: KindSoftware, Ports: []Port{}, Users: []string{}, Trouble: []string{}}
	var state transport.State
	var err error
	if e.Netdev, err = s.Netdev(); err == nil {
		state, err = s.Look(e.Netdev)
	}
	if err == nil {
		e.Ports = append(e.Ports, softPort(state))
		err = s.Bind(e.Netdev)
	}
	if err != nil {
		e.Trouble = append(e.Trouble, err.Error())
	}
	if taken, ok := errors.AsType[*udp.PortTakenError](err); ok {
		for _, h := range taken.Holders {
			e.Users = append(e.Users, h.String())
		}
	}
	return e
}

// softPort returns the port of the software HCA on a netdev.
func softPort(s transport.State) Port {
	p := Port{Num: 1, State: hca.PortDown, LinkLayer: hca.LinkLayerEthernet, GIDs: []rdma.GID{}, Trouble: []string{}}
	if s.Up {
		p.State = hca.PortActive
	} else {
		p.Trouble = append(p.Trouble, fmt.Sprintf("%s is down, or has no carrier", s.Name))
	}
	for i, a := range s.Addrs {
		p.GIDs = append(p.GIDs, rdma.GID{
			Index: i, GID: hca.GIDFromAddr(a), Type: hca.GIDTypeRoCEv2, Netdev: s.Name, Here: true,
		})
	}
	if len(s.Addrs) == 0 {
		p.Trouble = append(p.Trouble, fmt.Sprintf("%s has no IP address", s.Name))
	}
	return p
}

// real returns the HCAs of the kernel. It is not an error if the kernel does not support RDMA.
func (s System) real() (out []Entry, _ error) {
	devices, err := s.Devices()
	if errors.Is(err, rdma.ErrNoSubsystem) {
		return nil, nil
	}
	for i := range devices {
		out = append(out, s.realEntry(&devices[i]))
	}
	return out, err
}

// realNames returns the names of the kernel's RDMA devices, as far as it reports them.
func realNames() (names []string) {
	devices, _ := rdma.List()
	for i := range devices {
		names = append(names, devices[i].Name)
	}
	return names
}

func (s System) realEntry(d *rdma.Device) Entry {
	e := Entry{
		Name: d.Name, Kind: KindHardware, NodeGUID: &d.NodeGUID, PCIAddr: d.PCIAddr, Netdev: d.Parent,
		Ports: []Port{}, Users: []string{}, Trouble: texts(d.Troubles()),
	}
	if d.Parent != "" {
		e.Kind = KindSoftRoCE
	}
	if config.KindOf(d.Name) != config.KindRDMA {
		e.Trouble = append(e.Trouble,
			fmt.Sprintf("--device does not take its name; to rename it: rdma dev set %q name NAME", d.Name))
	}
	for _, p := range d.Ports {
		e.Ports = append(e.Ports, Port{p.Num, p.State, p.LinkLayer, p.GIDs, texts(p.Troubles())})
	}
	users, _ := s.Users(*d) // without those that this process cannot see
	for _, u := range users {
		e.Users = append(e.Users, u.String())
	}
	if len(e.Trouble) == 0 {
		dev, err := s.Open(d.Name)
		if err == nil {
			err = dev.Close()
		}
		if err != nil {
			e.Trouble = append(e.Trouble, err.Error())
		}
	}
	return e
}

func texts(troubles []rdma.Trouble) []string {
	out := []string{}
	for _, t := range troubles {
		out = append(out, t.String())
	}
	return out
}

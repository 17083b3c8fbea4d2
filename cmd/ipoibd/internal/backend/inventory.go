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
	Netdev   string    `json:"netdev,omitempty"` // under what is no hardware
	Ports    []Port    `json:"ports"`
	Users    []string  `json:"users"`   // who has it open
	Trouble  []string  `json:"trouble"` // why it cannot be used; empty: it can
}

// Port is a port of an HCA.
type Port struct {
	Num       uint8         `json:"num"`
	State     hca.PortState `json:"state"`
	LinkLayer hca.LinkLayer `json:"link_layer"`
	GIDs      []rdma.GID    `json:"gids"`
	Trouble   []string      `json:"trouble"` // as of Entry
}

// System is where an inventory is taken.
type System struct {
	Devices func() ([]rdma.Device, error)
	Users   func(rdma.Device) ([]rdma.User, error)
	Open    func(name string) (hca.Device, error)
	Netdev  func() (string, error) // of the software HCA
	Look    func(netdev string) (transport.State, error)
	Bind    func(netdev string) error // binds the UDP port for a moment
}

// Local is the system that the program runs on; open opens an RDMA device. The software
// HCA is on the netdev underlay; if that is empty, on the one that it chooses.
func Local(open func(string) (hca.Device, error), underlay string) System {
	s := System{listAll, rdma.Users, open, udp.DefaultNetdev, udp.Look, bind}
	if underlay != "" {
		s.Netdev = func() (string, error) { return underlay, nil }
	}
	return s
}

func bind(netdev string) error {
	if err := checkUnderlay(netdev); err != nil {
		return err
	}
	t, err := udp.Open(udp.Config{Netdev: netdev})
	if err == nil {
		err = t.Close()
	}
	return err
}

func listAll() ([]rdma.Device, error) {
	devices, err := rdma.List()
	for i := range devices {
		err = errors.Join(err, devices[i].ReadGIDs())
	}
	return devices, err
}

// Take returns the software HCA first, then those of the kernel. A kernel without
// RDMA has none, which is no error.
func (s System) Take() ([]Entry, error) {
	out := []Entry{s.software()}
	devices, err := s.Devices()
	if errors.Is(err, rdma.ErrNoSubsystem) {
		return out, nil
	}
	for i := range devices {
		out = append(out, s.real(&devices[i]))
	}
	return out, err
}

func (s System) software() Entry {
	e := Entry{Name: config.SoftHCA, Kind: KindSoftware, Ports: []Port{}, Users: []string{}, Trouble: []string{}}
	netdev, err := s.Netdev()
	if err != nil {
		e.Trouble = append(e.Trouble, err.Error())
		return e
	}
	e.Netdev = netdev
	state, err := s.Look(netdev)
	if err != nil {
		e.Trouble = append(e.Trouble, err.Error())
		return e
	}
	e.Ports = append(e.Ports, softPort(state))
	if err := s.Bind(netdev); err != nil {
		e.Trouble = append(e.Trouble, err.Error())
		if taken, ok := errors.AsType[*udp.PortTakenError](err); ok {
			e.Users = append(e.Users, taken.Holders...)
		}
	}
	return e
}

// softPort is the port that a netdev gives the software HCA.
func softPort(s transport.State) Port {
	p := Port{Num: 1, State: hca.PortDown, LinkLayer: hca.LinkLayerEthernet, GIDs: []rdma.GID{}, Trouble: []string{}}
	if s.Up {
		p.State = hca.PortActive
	} else {
		p.Trouble = append(p.Trouble, fmt.Sprintf("%s is down, or has no carrier", s.Name))
	}
	for i, a := range s.Addrs {
		p.GIDs = append(p.GIDs, rdma.GID{Index: i, GID: hca.GIDFromAddr(a), Type: hca.GIDTypeRoCEv2, Netdev: s.Name, Here: true})
	}
	if len(s.Addrs) == 0 {
		p.Trouble = append(p.Trouble, fmt.Sprintf("%s has no IP address", s.Name))
	}
	return p
}

func (s System) real(d *rdma.Device) Entry {
	e := Entry{
		Name: d.Name, Kind: KindHardware, NodeGUID: &d.NodeGUID, PCIAddr: d.PCIAddr, Netdev: d.Parent,
		Ports: []Port{}, Users: []string{}, Trouble: texts(d.Troubles()),
	}
	if d.Parent != "" {
		e.Kind = KindSoftRoCE
	}
	if !config.TakesHCA(d.Name) {
		e.Trouble = append(e.Trouble, fmt.Sprintf("--device does not take its name: rdma dev set %q name NAME", d.Name))
	}
	for _, p := range d.Ports {
		e.Ports = append(e.Ports, Port{p.Num, p.State, p.LinkLayer, p.GIDs, texts(p.Troubles())})
	}
	users, _ := s.Users(*d) // what cannot be seen is left out
	for _, u := range users {
		e.Users = append(e.Users, u.String())
	}
	if len(e.Trouble) == 0 {
		e.Trouble = append(e.Trouble, s.try(d.Name)...)
	}
	return e
}

// try opens a device for a moment.
func (s System) try(name string) []string {
	dev, err := s.Open(name)
	if err == nil {
		err = dev.Close()
	}
	if err != nil {
		return []string{err.Error()}
	}
	return nil
}

func texts(troubles []rdma.Trouble) []string {
	out := []string{}
	for _, t := range troubles {
		out = append(out, t.String())
	}
	return out
}

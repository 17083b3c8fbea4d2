package doctor

import (
	"errors"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/soft/udp"
	"ipoibd/link"
)

// device returns the facts about an HCA that need no examination.
func device(name, hca, underlay string) diagnose.Device {
	return diagnose.Device{Name: name, HCA: hca, Software: config.KindOf(hca) == config.KindSoft, Underlay: underlay}
}

// fromConfig returns the devices and interfaces of a configuration.
func fromConfig(cfg *config.Config) (devices []diagnose.Device, ifaces []diagnose.Interface) {
	for i := range cfg.Devices {
		d := &cfg.Devices[i]
		devices = append(devices, device(d.Name, d.HCA, d.Underlay))
	}
	for i := range cfg.Interfaces {
		c := &cfg.Interfaces[i]
		f := diagnose.Interface{Name: c.Name, Device: c.Device, EBPF: c.EBPF}
		for _, text := range c.Addresses {
			if p, err := config.ParseAddress(text); err == nil {
				f.Addresses = append(f.Addresses, p)
			}
		}
		ifaces = append(ifaces, f)
	}
	return devices, ifaces
}

// fromStatus returns the devices and interfaces of a daemon.
func fromStatus(s *report.Status) (devices []diagnose.Device, ifaces []diagnose.Interface) {
	for i := range s.Devices {
		d := &s.Devices[i]
		devices = append(devices, device(d.Name, d.HCA, d.Underlay))
	}
	for i := range s.Interfaces {
		ifaces = append(ifaces, diagnose.Interface{Name: s.Interfaces[i].Name, Device: s.Interfaces[i].Device})
	}
	return devices, ifaces
}

// takenPort returns who has the port, if an error of binding it says that it is taken.
func takenPort(err error) *diagnose.TakenPort {
	taken, is := errors.AsType[*udp.PortTakenError](err)
	if !is {
		return nil
	}
	p := &diagnose.TakenPort{Err: taken, Module: taken.Kernel}
	for _, h := range taken.Holders {
		p.Holders = append(p.Holders, diagnose.Holder(h))
	}
	return p
}

// claim returns what an error of package link says about the name of an interface.
func claim(err error) diagnose.Claim {
	c := diagnose.Claim{Err: err, Foreign: errors.Is(err, link.ErrNameTaken)}
	if owned, is := errors.AsType[*link.OwnedError](err); is {
		c.Owned, c.Owner = true, owned.PID
	}
	return c
}

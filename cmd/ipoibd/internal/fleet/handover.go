package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link/kernel/capsule"
	"ipoibd/qprecovery"
)

// The capsule of a fleet has the part "fleet", and a room for each device and interface of the configuration:
// "devices/" and "interfaces/" with its name.

// state is the part "fleet".
type state struct {
	Asleep bool `json:"asleep"` // the devices are suspended
}

// deviceState is the part "device" in the room of a device, beside those of its slot.
type deviceState struct {
	Before counted                 `json:"before"`
	Ladder qprecovery.HandedDevice `json:"ladder"`
}

func deviceRoom(name string) string    { return "devices/" + name }
func interfaceRoom(name string) string { return "interfaces/" + name }

// counted is what processes have counted of a device.
type counted struct {
	Counters report.Totals    `json:"counters"`
	Drops    uint64           `json:"drops"`
	Opens    uint64           `json:"opens"`
	Recovery *report.Recovery `json:"recovery"`
}

// addTo adds the counts to a report of the device.
func (c *counted) addTo(r *report.Device) {
	r.Counters.AddTotals(c.Counters)
	r.Drops += c.Drops
	r.Opens += c.Opens
	r.Recovery = r.Recovery.After(c.Recovery)
}

// Export puts everything that was parked into a capsule.
func (p *Parked) Export(w *capsule.Writer) error {
	errs := make([]error, len(p.ifaces))
	var all sync.WaitGroup
	for i, m := range p.ifaces {
		all.Go(func() { _, errs[i] = m.held.Export(w.Room(interfaceRoom(m.Name()))) })
	}
	all.Wait()
	for _, d := range p.devices { // after the interfaces, whose last messages it has sent
		r, room := d.Report(time.Now()), w.Room(deviceRoom(d.name))
		before := counted{report.TotalsOf(r.Counters), r.Drops, r.Opens, r.Recovery.Past()}
		room.Put("device", deviceState{before, d.held.Ladder})
		errs = append(errs, d.Slot.Export(room))
	}
	p.fleet.mu.Lock()
	w.Put("fleet", state{p.fleet.asleep})
	p.fleet.mu.Unlock()
	return errors.Join(errs...)
}

// Import makes everything that another process runs by a configuration. Nothing of it runs yet. After an error, part
// of it is made; Close closes it.
func (f *Fleet) Import(cfg *config.Config, r *capsule.Reader) (m Made, err error) {
	m = Made{devices: map[string]*Device{}, ifaces: map[string]*Interface{}, cfg: cfg}
	var s state
	if err := r.ValueIfAny("fleet", &s); err != nil {
		return m, err
	}
	m.asleep = s.Asleep
	states, await := map[string]iface.State{}, map[string][]hca.QPN{}
	for _, c := range cfg.Interfaces {
		var s iface.State
		if err := r.Room(interfaceRoom(c.Name)).Value("interface", &s); err != nil {
			return m, err
		}
		states[c.Name] = s
		if s.QPN != 0 {
			await[c.Device] = append(await[c.Device], s.QPN)
			m.wereUp = append(m.wereUp, c.Name)
		}
	}
	for _, c := range cfg.Devices {
		d, err := f.importDevice(c, cfg, r.Room(deviceRoom(c.Name)), await[c.Name])
		if err != nil {
			return m, fmt.Errorf("device %s: %w", c.Name, err)
		}
		m.devices[c.Name] = d
	}
	for _, c := range cfg.Interfaces {
		d := m.devices[c.Device]
		i, err := iface.Import(c, states[c.Name], r.Room(interfaceRoom(c.Name)), f.env(c.Name, d, m))
		if err != nil {
			return m, fmt.Errorf("interface %s: %w", c.Name, err)
		}
		m.ifaces[c.Name] = &Interface{iface: i, device: d}
	}
	return m, nil
}

// importDevice makes a device that continues one of the other process, and waits for the queue pairs of
// its interfaces.
func (f *Fleet) importDevice(c config.Device, cfg *config.Config, r *capsule.Reader, await []hca.QPN) (*Device, error) {
	var s deviceState
	if err := r.Value("device", &s); err != nil {
		return nil, err
	}
	d, err := f.makeDevice(f.running, c, cfg.Interfaces, false)
	if err != nil {
		return nil, err
	}
	d.before = s.Before
	d.Inherit(s.Ladder)
	if err := d.Slot.Import(r, await); err != nil {
		return nil, errors.Join(err, d.Slot.Close())
	}
	return d, nil
}

// upLimit bounds how long the daemon serves no clients after a hand-over, because the interfaces that were up are not
// up again yet. It takes milliseconds. Meanwhile, clients wait to be accepted.
const upLimit = time.Second

// AwaitUp waits until all interfaces are up again that were up in the other process, for at most upLimit or until ctx
// ends, and returns how long that took. Then it ends the other process's memberships of multicast groups
// ([backend.Slot.Settled]).
func (m Made) AwaitUp(ctx context.Context) time.Duration {
	began := time.Now()
	isDown := func(name string) bool { return !m.ifaces[name].iface.Works() }
	for slices.ContainsFunc(m.wereUp, isDown) && time.Since(began) < upLimit && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	took := time.Since(began)
	for _, d := range m.devices {
		d.Slot.Settled()
	}
	return took
}

package device

import (
	"cmp"
	"fmt"
	"log/slog"

	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
)

// locks are the locks by which the processes that use the device agree about its resets.
type locks struct {
	cfg    Config
	log    *slog.Logger
	public *publisher
	sharer resetlock.Sharer // nil: they are not open yet
	err    error            // why
}

// join opens the locks. They are named after the identity of the device, so the device must be
// in the list, unless no other process uses it.
func (l *locks) join(listed []qprecovery.Identity) (qprecovery.Resets, error) {
	conf := resetlock.Config{
		Dir: l.cfg.Coordinator, Holders: l.cfg.Holders, Log: l.log,
		Config: reset.Config{Name: cmp.Or(l.cfg.Users, l.cfg.Name), Exclusive: l.cfg.Means != "", Grace: l.cfg.Grace},
	}
	if len(listed) > 0 {
		id := listed[0]
		conf.Device = reset.Device{
			NodeGUID: id.NodeGUID,
			PCIAddr:  cmp.Or(id.PCIAddr, l.cfg.Function),
			Parent:   id.Parent,
			Name:     id.Name,
			Means:    l.cfg.Means,
		}
	} else if conf.Dir != "" {
		l.err = fmt.Errorf("device %s: %w", l.cfg.Name, hca.ErrNoDevice)
		return nil, l.err
	}
	s, err := l.cfg.Locks(conf)
	if l.err = err; err != nil {
		return nil, err
	}
	l.sharer = s
	l.public.locks.Store(&s)
	return s, nil
}

package guard

import (
	"context"

	"ipoibd/hca"
)

// openDevice is the verb of Open.
const openDevice = "open_device"

// Open opens a device with open, and wraps it. Open blocks for at most Options.OpenTimeout, and for at
// most Options.VerbTimeout once ctx has ended; then it abandons open, returns an error that wraps
// [hca.ErrStuck], and counts a zombie until open returns. A device that opens late is closed. While
// there are too many zombies, Open returns the error of [Zombies.Room].
func Open(ctx context.Context, open func(context.Context) (hca.Device, error), opts Options) (*Device, error) {
	opts = opts.withDefaults()
	if err := opts.Zombies.Room(); err != nil {
		return nil, err
	}
	type result struct {
		dev hca.Device
		err error
	}
	answered, abandoned := make(chan result), make(chan struct{})
	go func() {
		dev, err := open(ctx)
		select {
		case answered <- result{dev, err}:
		case <-abandoned:
			if err == nil {
				_ = dev.Close() // it has no owner that could handle the error
			}
			opts.Zombies.n.Add(-1)
		}
	}()
	p, ended := newPatience(opts.OpenTimeout), ctx.Done()
	defer func() { p.timer.Stop() }()
	for {
		select {
		case <-ended:
			p.timer.Stop()
			p, ended = newPatience(opts.VerbTimeout), nil
		case r := <-answered:
			if r.err != nil {
				return nil, r.err
			}
			return Wrap(r.dev, opts), nil
		case <-p.timer.C:
			if p.spent() {
				opts.Zombies.n.Add(1)
				close(abandoned)
				return nil, &hca.VerbError{Verb: openDevice, Err: hca.ErrStuck}
			}
		}
	}
}

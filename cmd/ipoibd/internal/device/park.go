package device

import "context"

// Park makes Run wait until release is called, because another process may continue what uses the
// device: meanwhile the session neither ends nor is reset. Errors: ErrEnded, the error of ctx.
func (d *Device) Park(ctx context.Context) (release func(), err error) {
	parked, released := make(chan struct{}), make(chan struct{})
	select {
	case d.calls <- func(*owner) { close(parked); <-released }:
		<-parked
		return func() { close(released) }, nil
	case <-d.ended:
		return nil, ErrEnded
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

package kernel

// listTries bounds the attempts to read a list.
const listTries = 5

// List reads a list of the kernel by netlink, again if that fails: the list may have changed while it was read
// (netlink.ErrDumpInterrupted), or another process may have sent to the socket. read blocks as long as it does.
func List[T any](read func() ([]T, error)) (list []T, err error) {
	for range listTries {
		if list, err = read(); err == nil {
			return list, nil
		}
	}
	return nil, err
}

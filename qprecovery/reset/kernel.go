package reset

// Kernel makes the system calls of a [Machine], which must not block.
type Kernel interface {
	// Read returns the intent: the zero record if it cannot be read.
	Read() Record
	// Write writes the intent.
	Write(r Record)
	// Claim tries to lock the intent. An error says why it can never be ours.
	Claim() (ours bool, err error)
	// Disclaim unlocks the intent.
	Disclaim()
	// Share tries to lock use shared. It may convert an exclusive lock.
	Share() bool
	// Exclude tries to lock use exclusively. If it fails, the shared lock is lost as well.
	// An error says why it can never be ours.
	Exclude() (ours bool, err error)
	// Drop unlocks use.
	Drop()
	// Foreign reports whether a process that takes no part in the locks has the device open,
	// or may have it open. The exclusive lock is ours.
	Foreign() bool
	// Holders names the processes that have the device open.
	Holders() string
}

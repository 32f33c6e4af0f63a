package cpu

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/mknet"
)

// A library that hangs is given up, and one that answers is believed, whatever it says.
func TestAskGivesUp(t *testing.T) {
	hang := make(chan struct{})
	done := make(chan struct{})
	_, err := ask(time.Millisecond, mknet.Options{}, func(mknet.Options) (string, error) {
		<-hang
		close(done)
		return "late", nil
	})
	if err == nil || !strings.Contains(err.Error(), "its library did not say within 1ms what it has") {
		t.Error(err)
	}
	close(hang)
	<-done
	broken := errors.New("broken")
	if text, err := ask(time.Hour, mknet.Options{}, func(mknet.Options) (string, error) { return "two NICs", broken }); text != "two NICs" || !errors.Is(err, broken) {
		t.Errorf("%q, %v", text, err)
	}
}

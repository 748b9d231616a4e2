/* Does nothing with a GPU. Under the library it must behave as without. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
    errno = 7;
    printf("errno %d\n", errno);
    return 3;
}

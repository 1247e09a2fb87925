/* What libcrypto does in assembly: digests, ciphers and multiplication of
   large numbers, each done once before it is judged. Declared here, since the
   library is wherever openssl is and its headers are not. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct engine ENGINE;
typedef struct evp_md EVP_MD;
typedef struct evp_cipher EVP_CIPHER;
typedef struct evp_cipher_ctx EVP_CIPHER_CTX;
typedef struct bignum BIGNUM;
typedef struct bn_ctx BN_CTX;
typedef struct bn_mont_ctx BN_MONT_CTX;
typedef struct ec_group EC_GROUP;
typedef struct ec_point EC_POINT;

EVP_MD *EVP_MD_fetch(void *, const char *, const char *);
int EVP_Digest(const void *, size_t, unsigned char *, unsigned *, const EVP_MD *, ENGINE *);
EVP_CIPHER *EVP_CIPHER_fetch(void *, const char *, const char *);
EVP_CIPHER_CTX *EVP_CIPHER_CTX_new(void);
int EVP_EncryptInit_ex(EVP_CIPHER_CTX *, const EVP_CIPHER *, ENGINE *, const unsigned char *, const unsigned char *);
int EVP_EncryptUpdate(EVP_CIPHER_CTX *, unsigned char *, int *, const unsigned char *, int);
int EVP_EncryptFinal_ex(EVP_CIPHER_CTX *, unsigned char *, int *);
BIGNUM *BN_bin2bn(const unsigned char *, int, BIGNUM *);
BIGNUM *BN_new(void);
BN_CTX *BN_CTX_new(void);
BN_MONT_CTX *BN_MONT_CTX_new(void);
int BN_MONT_CTX_set(BN_MONT_CTX *, const BIGNUM *, BN_CTX *);
int BN_mod_mul_montgomery(BIGNUM *, const BIGNUM *, const BIGNUM *, BN_MONT_CTX *, BN_CTX *);
EC_GROUP *EC_GROUP_new_by_curve_name(int);
EC_POINT *EC_POINT_new(const EC_GROUP *);
int EC_POINT_mul(const EC_GROUP *, EC_POINT *, const BIGNUM *, const EC_POINT *, const BIGNUM *, BN_CTX *);

enum { digests = 4, ciphers = 3, p256 = 415 };

static EVP_MD *digest[digests];
static EVP_CIPHER *cipher[ciphers];
static EVP_CIPHER_CTX *context;
static BN_CTX *numbers;
static BIGNUM *one, *two, *product;
static BN_MONT_CTX *modulus;
static EC_GROUP *curve;
static EC_POINT *point;
static unsigned char in[1024], out[2048];

static long work(void) {
	long sum = 0;
	unsigned size = 0;
	int n = 0;
	for (int i = 0; i < digests; i++) {
		EVP_Digest(in, 130, out, &size, digest[i], NULL);
		sum += out[size - 1];
	}
	for (int i = 0; i < ciphers; i++) {
		EVP_EncryptInit_ex(context, cipher[i], NULL, in, in + 64);
		EVP_EncryptUpdate(context, out, &n, in, 520);
		EVP_EncryptFinal_ex(context, out + n, &n);
		sum += out[500];
	}
	for (int i = 0; i < 3; i++)
		BN_mod_mul_montgomery(product, one, i ? product : two, modulus, numbers);
	return sum + EC_POINT_mul(curve, point, two, NULL, NULL, numbers);
}

int main(void) {
	static const char *const digestNames[digests] = {"SHA1", "SHA256", "SHA512", "MD5"};
	static const char *const cipherNames[ciphers] = {"AES-256-GCM", "ChaCha20-Poly1305", "AES-128-CBC"};
	for (unsigned i = 0; i < sizeof in; i++)
		in[i] = (unsigned char)(i * 7 + 1);
	for (int i = 0; i < digests; i++)
		digest[i] = EVP_MD_fetch(NULL, digestNames[i], NULL);
	for (int i = 0; i < ciphers; i++)
		cipher[i] = EVP_CIPHER_fetch(NULL, cipherNames[i], NULL);
	context = EVP_CIPHER_CTX_new();
	numbers = BN_CTX_new();
	one = BN_bin2bn(in, 64, NULL);
	two = BN_bin2bn(in + 3, 32, NULL);
	product = BN_new();
	modulus = BN_MONT_CTX_new();
	BN_MONT_CTX_set(modulus, BN_bin2bn(in + 1, 64, NULL), numbers);
	curve = EC_GROUP_new_by_curve_name(p256);
	point = EC_POINT_new(curve);
	long before = work();
	getppid();
	printf("%d\n", before == work());
	return 0;
}
